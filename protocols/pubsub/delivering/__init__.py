"""How an event that was matched comes to its subscribers: it is delivered, held by others meanwhile, and counted."""
