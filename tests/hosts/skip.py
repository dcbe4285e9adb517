"""Runs the tests of a file, or says why they cannot run here as GoogleTest would say it."""
import os
import sys
import unittest

import hosts


def main(*more_reasons, hosts_needed=True):
    """`more_reasons`: what else says why not, "" if it can."""
    reasons = ((hosts.why_not,) if hosts_needed else ()) + more_reasons
    why = next((why for why in (reason() for reason in reasons) if why), "")
    if not why:
        unittest.main(verbosity=2)
    print(f"{os.path.basename(sys.argv[0])}: Skipped\n{why}\n[  SKIPPED ] hosts")
    sys.exit(77)
