"""Owns `make accuracy-devices`: end-to-end predictions of the device models compared with published measurements."""
