"""Plans without bytes: the stage graph of a live query, and which part of it is state."""
