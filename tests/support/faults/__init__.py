"""The small task whose runs are disturbed."""
