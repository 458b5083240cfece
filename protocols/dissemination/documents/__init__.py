"""Large documents: an item of a stream may have one attached, which travels in chunks over bulk connections."""
