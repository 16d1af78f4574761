raise RuntimeError("no licence")
