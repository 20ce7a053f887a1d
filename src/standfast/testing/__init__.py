"""What users and this project test with: a clock to move, and the suites that every store passes."""
