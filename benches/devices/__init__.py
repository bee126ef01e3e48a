"""Owns `make accuracy-devices`: end-to-end predictions of the device models against published measurements."""
