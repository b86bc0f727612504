"""Fleets that others have measured and published, set up as they were, beside what was measured.

``python -m tests.published`` runs all of them in full (about 12 minutes of one core) and writes
their figures to ``tests/data/published/fleets.json`` and their tables to
``results/validation.md``; with names it runs those alone. The tests run them smaller.
"""
