import HTTPCaching

print("HTTPCaching is linked")
