print("urlcache")
