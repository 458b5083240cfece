"""Members of a simulated ring that misbehave: valid identities, real nodes underneath, behaviours on top of them."""
