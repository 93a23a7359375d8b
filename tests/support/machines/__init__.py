"""Machines made of namespaces of this one."""
