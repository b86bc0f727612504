"""Runs set-ups in full and keeps their figures."""

import json
import sys
import time

from kvsim.policies.finding import trust_policies
from tests.published.figures import FILE, RUNS

trust_policies()
for name in sys.argv[1:] or list(RUNS):
    for variant, run in RUNS[name].items():
        started = time.process_time()
        figures = {key: float(f"{value:.6g}") for key, value in run().items()}
        kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
        kept.setdefault(name, {})[variant] = figures
        print(name, variant, figures, f"{time.process_time() - started:.0f} s", flush=True)
        FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
