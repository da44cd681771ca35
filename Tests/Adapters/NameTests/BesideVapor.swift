import LMDB
import LMDBURLCache
import Vapor

// Each name below means the declaration of Vapor, without a module in front.

func vaporMessages() -> (ClientRequest, ClientResponse) { (ClientRequest(), ClientResponse()) }

func vaporEnvironment() -> Environment { Environment() }
