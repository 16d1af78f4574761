"""The fault campaign. `campaign.py` is the command; `plan` chooses the faults, `faults` injects them, `checks` finds violations.

`instance` is the daemon that is struck, `runs` and `user_code` are what it runs; `ledger` and `report` keep and print the results.
"""
