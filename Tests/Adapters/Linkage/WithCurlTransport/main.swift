import CurlTransport

print("CurlTransport is linked")
