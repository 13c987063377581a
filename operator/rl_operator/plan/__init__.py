"""Run and profile -> what will be carried out. Pure."""
