"""The execution of one turn in this process, from its input until it ends or parks."""
