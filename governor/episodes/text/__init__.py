"""Language models in text environments: the Interactor, its pool of environments, and its sessions."""
