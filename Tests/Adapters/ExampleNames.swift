import CachingClient
import CurlTransport
import Foundation
import FoundationNetworking
import HTTPCaching
import LMDB
import LMDBURLCache
import Logging
import RedisTier
import ResponseStore

// The names that the examples of the articles use without declaring them. Scripts/check-examples compiles these with
// each article, and adds the imports above to examples that have none. No code runs.

var cache: LMDBURLCache { fatalError() }
var directory: URL { fatalError() }
var url: URL { fatalError() }
var date: Date { fatalError() }
var response: URLResponse { fatalError() }
var request: URLRequest { fatalError() }
var session: URLSession { fatalError() }
var file: FileHandle { fatalError() }
var logger: Logger { fatalError() }
var secret: Data { fatalError() }
var curlConfiguration: CurlTransport.Configuration { fatalError() }
var sessionConfiguration: URLSessionConfiguration { fatalError() }
