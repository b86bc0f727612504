"""What is kept of a run: a row a request, a row a moment, and the figures made from them."""
