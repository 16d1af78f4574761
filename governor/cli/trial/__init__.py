"""`governor try`: one task or one episode in the foreground of the terminal."""
