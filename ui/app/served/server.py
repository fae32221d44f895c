"""The server of the app. `streamlit run` starts this file and serves `app`, whose pages `script.py` draws."""

from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware

from ui.app import ahead
from ui.app.this_machine import ThisMachineOnly

app = st.App(Path(__file__).with_name("script.py"), middleware=[Middleware(ThisMachineOnly)])
ahead.enable()
