"""How runs are handed in: their record in the journal, what they keep of an earlier run, and the copy of their code."""
