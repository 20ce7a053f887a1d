"""Workers: processes that run the turns of a store, on any number of machines."""
