"""The engine on the real kernel: a fabric built by Mininet inside private namespaces.

A package of its own because only it needs root, Mininet and netlink; nothing is imported here.
"""
