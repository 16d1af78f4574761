"""The fault campaign: `campaign.py` is the command, `plan` the kinds of fault, `faults` does them, `checks` judges, `report` writes."""
