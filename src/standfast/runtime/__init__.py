"""What users hold in their hands: the sandbox, agents, sessions and turns. Import from the modules."""
