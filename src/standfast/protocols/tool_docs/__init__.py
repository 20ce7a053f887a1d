"""How tools are described to a model that does not see all of them: stubs, a guide, a search."""
