"""How likely one of equal ranks stands out as much by chance."""
