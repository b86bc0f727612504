"""Runs set-ups in full and keeps their figures."""

import json
import sys
import time

from kvsim.policies.finding import trust_policies
from tests.published.figures import FILE, RUNS
from tests.published.tables import VALIDATION, part, replaced

trust_policies()
kept = json.loads(FILE.read_text(encoding="utf-8"))
for name in sys.argv[1:] or list(RUNS):
    kept[name] = {}
    for variant, run in RUNS[name].items():
        started = time.process_time()
        figures = {key: float(f"{value:.6g}") for key, value in run().items()}
        kept[name][variant] = figures
        print(name, variant, figures, f"{time.process_time() - started:.0f} s", flush=True)
        FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
text = VALIDATION.read_text(encoding="utf-8")
VALIDATION.write_text(replaced(text, part(kept)), encoding="utf-8")
