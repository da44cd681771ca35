// HTTPCachingTests: its first slice is on its way.
