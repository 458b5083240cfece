"""Pure parts that several protocols share: sans-IO, without knowledge of any protocol."""
