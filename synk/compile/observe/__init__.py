"""What stands around every node of a program: checks of what it does, records of what it takes."""
