"""The network: keys of peers, and who comes in with them."""
