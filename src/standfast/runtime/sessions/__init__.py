"""Sessions as a runtime has them: where they are found, what they are made of, who watches them."""
