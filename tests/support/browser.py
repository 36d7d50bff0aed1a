"""The browser that this machine has, for tests of pages."""

import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((found for name in BROWSERS if (found := shutil.which(name))), None)
