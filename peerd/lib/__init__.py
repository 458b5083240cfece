"""Pure parts that several protocols share: no input, no output, no clock."""
