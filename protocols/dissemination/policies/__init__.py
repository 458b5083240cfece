"""Policies: what decides the shape of a stream's tree. The mechanism asks, and carries out what they answer."""
