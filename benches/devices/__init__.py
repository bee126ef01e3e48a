"""Owns `make accuracy-devices`: predictions of the device models against measurements that others have published, end to end."""
