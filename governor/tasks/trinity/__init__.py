"""The parts of `scheduler` and `coordinator`, under Trinity-RFT's names."""
