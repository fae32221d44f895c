"""The app's server as it is, but that it loads nothing ahead. Streamlit starts this file."""

import streamlit as st
from starlette.middleware import Middleware

from tests.support.app_pages import SCRIPT
from ui.app.this_machine import ThisMachineOnly

app = st.App(SCRIPT, middleware=[Middleware(ThisMachineOnly)])
