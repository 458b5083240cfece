"""What a value that a node holds is worth: the agreement between who provides it and who holds it. Pure."""
