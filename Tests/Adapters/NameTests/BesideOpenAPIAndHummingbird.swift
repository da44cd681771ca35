import HTTPTypes
import Hummingbird
import LMDB
import LMDBURLCache
import OpenAPIURLSession

// Each name below means the declaration of the other package, without a module in front.

func sendOverOpenAPI() -> URLSessionTransport { URLSessionTransport() }

func openAPIFields() -> HTTPFields { HTTPFields() }

func serverBodies() -> (RequestBody, ResponseBody) { (RequestBody(), ResponseBody()) }

func serverEnvironment() -> Environment { Environment() }
