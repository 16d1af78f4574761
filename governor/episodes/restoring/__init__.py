"""An agent whose process has died, or that has learned of an episode that is played again: back to where the record is."""
