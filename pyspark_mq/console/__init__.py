"""The console: a store or a cluster in a browser. `pages.console_app` makes the Starlette application.

Pages are rendered on the server. `console.js` replaces parts of an open page with server-sent events, and draws charts.
"""
