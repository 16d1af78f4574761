"""What runs at the same time share: who begins (`capacity`), and who ends when there is too little (`shortage`)."""
