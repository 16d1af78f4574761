"""What verbs print: lines, tables, plots and live displays of runs, rows as files. Nothing here asks the daemon."""
