import LMDBURLCache

print("LMDBURLCache is linked")
