"""`Log`, `Group` and `Member` of a store's directory."""
