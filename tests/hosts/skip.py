"""Runs the tests of a file, or says why they cannot run here as GoogleTest would say it."""
import os
import sys
import unittest

import hosts


def main(*more_reasons):
    """`more_reasons`: what else says why not, "" if it can."""
    why = next((why for why in (reason() for reason in (hosts.why_not, *more_reasons)) if why), "")
    if not why:
        unittest.main(verbosity=2)
    print(f"{os.path.basename(sys.argv[0])}: Skipped\n{why}\n[  SKIPPED ] hosts")
    sys.exit(77)
